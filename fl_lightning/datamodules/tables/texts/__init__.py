"""Texts as tokens: prompts with responses, chats, and columns that are tokens already."""
