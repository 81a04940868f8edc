"""Sends statuses of jobs to the forges: the newest of each context, in order, once.

This holds also if a process dies.
"""
