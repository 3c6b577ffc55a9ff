"""Text: tokenizer, incremental detokenizer, chat templates."""
