"""Inputs room: what the user states, as frozen validated types; the catalogue; HuggingFace configurations; loading."""
