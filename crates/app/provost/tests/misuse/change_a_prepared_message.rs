use provost::shared::{List, String};

#[derive(Clone, Debug, Default, PartialEq)]
#[repr(C)]
struct Note {
    text: String,
    tags: List<String>,
}

provost::__message!(Note, "test.Note", [text, tags]);

fn misuse(note: &mut provost::shared::Prepared<Note>) {
    note.text.clear();
}

fn main() {}
