"""One run, from its inputs to its report.

`plan` and `folder` describe the run folder, `train` trains its network, `apply` applies it to video
and `write` writes the tables, overlays and masks. `results` adds the report, `watch` learns while
frames arrive, and `fleet` and `parts` apply a run to thousands of videos. Commands, the studio and
notebooks
call these functions.
"""
