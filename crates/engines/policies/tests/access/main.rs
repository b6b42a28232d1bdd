//! Access control: what expressions mean, and what rules of them do with calls.

mod expressions;
mod oracle;
mod rules;
mod shop;
