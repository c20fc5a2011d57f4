"""Results for people and programs: tables, overlay video, charts and the HTML report."""
