// A queue from one clock to another: what is pushed comes out once, in order. Each side sees the other's counter some cycles late, so it may look
// fuller to who pushes and emptier to who pops than it is, and never the other way round. A push without room, or a pop of nothing, changes nothing.
//
//   push_clk                                            pop_clk
//   elements ─────────────────────────────────────────► pop_data, which is looked at only when the counter has arrived
//   gray_counter: tail ─► gray_synchronizer ──────────► pop_valid
//   push_ready ◄────────── gray_synchronizer ◄───────── gray_counter: head
//
// Both sides are reset before either is used.
module clock_fifo #(
    parameter int WIDTH = 8,
    // At least 2.
    parameter int DEPTH_LOG2 = 3
) (
    input logic push_clk,
    input logic push_rst,
    input logic push,
    input logic [WIDTH-1:0] push_data,
    output logic push_ready,
    input logic pop_clk,
    input logic pop_rst,
    input logic pop,
    output logic pop_valid,
    output logic [WIDTH-1:0] pop_data
);
  localparam int DEPTH = 1 << DEPTH_LOG2;
  // One bit more than an index, so that full and empty differ.
  localparam int BITS = DEPTH_LOG2 + 1;

  logic [WIDTH-1:0] elements[DEPTH];
  logic [BITS-1:0] tail;
  logic [BITS-1:0] tail_gray;
  logic [BITS-1:0] tail_seen;
  logic [BITS-1:0] head;
  logic [BITS-1:0] head_gray;
  logic [BITS-1:0] head_seen;
  logic pushes;
  logic pops;

  gray_counter #(
      .WIDTH(BITS)
  ) tail_counter (
      .clk(push_clk),
      .rst(push_rst),
      .advance(pushes),
      .count(tail),
      .gray(tail_gray)
  );
  gray_synchronizer #(
      .WIDTH(BITS)
  ) head_to_push (
      .clk(push_clk),
      .rst(push_rst),
      .gray(head_gray),
      .seen(head_seen)
  );
  // Full: the counters are a whole depth apart, and then the two highest bits of their Gray codes differ, and no other.
  assign push_ready = tail_gray != {~head_seen[BITS-1:BITS-2], head_seen[BITS-3:0]};
  assign pushes = push && push_ready;
  always_ff @(posedge push_clk) if (pushes) elements[tail[DEPTH_LOG2-1:0]] <= push_data;

  gray_counter #(
      .WIDTH(BITS)
  ) head_counter (
      .clk(pop_clk),
      .rst(pop_rst),
      .advance(pops),
      .count(head),
      .gray(head_gray)
  );
  gray_synchronizer #(
      .WIDTH(BITS)
  ) tail_to_pop (
      .clk(pop_clk),
      .rst(pop_rst),
      .gray(tail_gray),
      .seen(tail_seen)
  );
  assign pop_valid = head_gray != tail_seen;
  assign pops = pop && pop_valid;
  assign pop_data = elements[head[DEPTH_LOG2-1:0]];

  /* verilator lint_off UNUSEDSIGNAL */
  logic unused;
  assign unused = &{1'b0, tail[BITS-1], head[BITS-1]};
  /* verilator lint_on UNUSEDSIGNAL */
endmodule
