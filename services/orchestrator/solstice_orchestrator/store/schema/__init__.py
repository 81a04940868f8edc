"""The schemas of the job store: the same numbers mean the same change in every one of them."""
