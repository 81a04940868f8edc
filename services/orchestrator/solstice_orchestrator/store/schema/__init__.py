"""The schemas of the job store; a migration number means the same change in all."""
