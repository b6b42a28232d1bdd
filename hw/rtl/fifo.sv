// A queue: what is pushed comes out once, in order. Its output shows the oldest element whenever there is one.
// A push without room, or a pop of nothing, changes nothing.
module fifo #(
    parameter int WIDTH = 8,
    parameter int DEPTH_LOG2 = 3
) (
    input logic clk,
    input logic rst,
    input logic push,
    input logic [WIDTH-1:0] push_data,
    output logic push_ready,
    input logic pop,
    output logic pop_valid,
    output logic [WIDTH-1:0] pop_data,
    output logic [DEPTH_LOG2:0] level
);
  localparam int DEPTH = 1 << DEPTH_LOG2;

  logic [WIDTH-1:0] elements[DEPTH];
  // One bit more than an index, so that full and empty differ.
  logic [DEPTH_LOG2:0] head_q;
  logic [DEPTH_LOG2:0] tail_q;

  assign level = tail_q - head_q;
  assign push_ready = level != (DEPTH_LOG2 + 1)'(DEPTH);
  assign pop_valid = level != '0;
  assign pop_data = elements[head_q[DEPTH_LOG2-1:0]];

  always_ff @(posedge clk) begin
    if (push && push_ready) elements[tail_q[DEPTH_LOG2-1:0]] <= push_data;
    if (rst) begin
      head_q <= '0;
      tail_q <= '0;
    end else begin
      if (push && push_ready) tail_q <= tail_q + 1'b1;
      if (pop && pop_valid) head_q <= head_q + 1'b1;
    end
  end
endmodule
