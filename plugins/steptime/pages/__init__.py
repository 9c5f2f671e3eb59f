"""What the pages show, once: as data for the pages' server and as files to send; and the pages themselves."""
