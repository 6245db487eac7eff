"""Messages in English: the values that a schema asks for, and the reason why no value fits."""
