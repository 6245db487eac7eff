"""What a schema asks for, why no value fits, what its author may not expect: in English."""
