use provost::Received;
use provost::shared::{List, String};

#[derive(Clone, Debug, Default, PartialEq)]
#[repr(C)]
struct Note {
    text: String,
    tags: List<String>,
}

provost::__message!(Note, "test.Note", [text, tags]);

fn misuse(note: Received<Note>) {
    let text: &str = &note.text;
    std::thread::spawn(move || println!("{text}"));
}

fn main() {}
