"""Keeps the artifacts of jobs: collects files, stores archives by digest, and places them."""
