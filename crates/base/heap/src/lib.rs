//! An offset allocator that never touches the memory it manages
