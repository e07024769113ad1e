"""The jobs end to end: profile a device, plan for it, validate the plan."""
