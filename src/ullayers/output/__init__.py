"""Results for people and programs.

`export` applies a run to video and writes the table, masks, the overlay video and summary.json;
`run_report` then collects what the HTML report shows, and `report` renders it from the templates.
"""
