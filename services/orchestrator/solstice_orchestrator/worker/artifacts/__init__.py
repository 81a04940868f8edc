"""Keeps the artifacts of jobs: collects their files, and stores the archives by digest."""
