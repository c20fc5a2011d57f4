"""Speed, memory and quality beside others, measured side by side in one run: `ul bench`."""
