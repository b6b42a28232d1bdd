use provost::Received;
use provost::shared::{List, String};

#[derive(Clone, Debug, Default, PartialEq)]
#[repr(C)]
struct Note {
    text: String,
    tags: List<String>,
}

provost::__message!(Note, "test.Note", [text, tags]);

fn misuse(note: &mut Received<Note>) {
    note.text.push_str("changed");
    note.tags.clear();
}

fn main() {}
