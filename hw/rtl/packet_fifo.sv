// A queue of lines whose newest packet can still be taken back: lines that were pushed come out only after `commit`, and
// `rollback` forgets those since the last commit. A push without room changes nothing.
module packet_fifo #(
    parameter int WIDTH = 512,
    parameter int DEPTH_LOG2 = 8
) (
    input logic clk,
    input logic rst,
    input logic push,
    input logic [WIDTH-1:0] push_data,
    output logic push_ready,
    // With the last push of a packet, or after it.
    input logic commit,
    input logic rollback,
    input logic pop,
    output logic pop_valid,
    output logic [WIDTH-1:0] pop_data
);
  localparam int DEPTH = 1 << DEPTH_LOG2;

  logic [DEPTH_LOG2:0] head_q;
  logic [DEPTH_LOG2:0] tail_q;
  logic [DEPTH_LOG2:0] committed_q;
  // The committed end as it was a cycle ago: what lies before it has been read from memory by now.
  logic [DEPTH_LOG2:0] visible_q;
  logic [DEPTH_LOG2:0] level;
  logic [DEPTH_LOG2:0] tail_next;
  logic [DEPTH_LOG2:0] head_next;

  assign level = tail_q - head_q;
  assign push_ready = level != (DEPTH_LOG2 + 1)'(DEPTH);
  assign pop_valid = visible_q != head_q;
  assign tail_next = tail_q + (DEPTH_LOG2 + 1)'(push && push_ready);
  assign head_next = head_q + (DEPTH_LOG2 + 1)'(pop && pop_valid);

  line_ram #(
      .WIDTH(WIDTH),
      .ADDRESS_BITS(DEPTH_LOG2)
  ) memory (
      .clk,
      .write(push && push_ready),
      .write_address(tail_q[DEPTH_LOG2-1:0]),
      .write_data(push_data),
      .read_address(head_next[DEPTH_LOG2-1:0]),
      .read_data(pop_data)
  );

  always_ff @(posedge clk) begin
    if (rst) begin
      head_q <= '0;
      tail_q <= '0;
      committed_q <= '0;
      visible_q <= '0;
    end else begin
      head_q <= head_next;
      visible_q <= committed_q;
      if (rollback) tail_q <= committed_q;
      else tail_q <= tail_next;
      if (commit && !rollback) committed_q <= tail_next;
    end
  end
endmodule
