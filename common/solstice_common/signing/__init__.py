"""Signs requests and cancel requests, and verifies that a key may sign them."""
