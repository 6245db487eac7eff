"""A request and what comes of it: prompt, settings, ends, updates, statistics, traces."""
