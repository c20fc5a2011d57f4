"""The `ul` command. Nothing else imports it."""
