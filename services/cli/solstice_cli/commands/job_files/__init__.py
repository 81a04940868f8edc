"""The commands about files of jobs: artifacts and caches."""
