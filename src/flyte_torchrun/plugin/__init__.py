"""What the plugins of both SDKs have in common: settings, jobs, plans, and the picture of a launch."""
