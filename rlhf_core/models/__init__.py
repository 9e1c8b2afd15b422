"""Models and tokenizers from Hugging Face folders."""
