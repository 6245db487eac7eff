"""The commands of jobs: `extract`, `retry`, `demo`, `status`, `report`, `export`, `import` and their like."""
