"""Completes the command lines of all programs in bash, zsh and fish."""
