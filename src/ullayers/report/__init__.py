"""What a person looks at: drawn frames, charts and the HTML page.

`drawing` and `overlay` draw results onto frames, `charts`, `pictures` and `behaviour` make the
figures, and `page` puts them into the report. Everything here is a function of tables and settings;
`run` calls it with the results of a run.
"""
