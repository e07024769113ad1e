"""What forwards should take on a device that is not here, from those that were."""
