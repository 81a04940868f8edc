"""Child processes: started, talked to, ended for certain, and nothing of them left."""
