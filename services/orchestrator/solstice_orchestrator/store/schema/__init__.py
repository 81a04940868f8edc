"""The schemas of the job store; a migration's number means the same change in each."""
