"""What drafters with a checkpoint of their own share: its files, its layers' parts, their cache."""
