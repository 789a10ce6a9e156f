"""Text in, checked plan out."""
