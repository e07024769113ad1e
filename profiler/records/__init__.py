"""The frozen records of measurement: what a device, a model and a drafter were seen to do. No torch in here."""
