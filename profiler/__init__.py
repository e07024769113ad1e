"""How fast is this device, and how good is this drafter? Measurements go in, frozen records come out."""
