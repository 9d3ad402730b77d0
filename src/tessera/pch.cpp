// Holds the precompiled headers that rooms and tests reuse.
