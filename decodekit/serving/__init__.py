"""An endpoint that speaks OpenAI's protocol, over an engine."""
