"""What published planners would choose, to compare with."""
