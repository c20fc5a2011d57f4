"""Results for users and other programs.

`export` applies a run to video and writes the table, masks, the overlay video and summary.json;
`fleet` writes the same tables of thousands of videos on a Ray cluster (with `parts` and `cluster`).
`run_report` then collects the content of the HTML report, and `report` renders it from the
templates.
"""
