"""Runs the steps of each attempt in a virtual machine (VM) of QEMU."""
