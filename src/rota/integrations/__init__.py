"""What frameworks need beyond `async with app:`. Nothing here is imported unless the framework asks for it."""
