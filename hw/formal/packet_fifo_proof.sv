// packet_fifo: the committed lines come out once, in order, and those that were taken back never do. Line number k of the committed
// ones, for any k, comes out as it went in.
module packet_fifo_proof (
    input logic clk,
    input logic rst,
    input logic push,
    input logic [3:0] push_data,
    input logic commit,
    input logic rollback,
    input logic pop
);
  logic push_ready;
  logic pop_valid;
  logic [3:0] pop_data;
  packet_fifo #(
      .WIDTH(4),
      .DEPTH_LOG2(2)
  ) dut (
      .*
  );

  (* anyconst *) logic [5:0] watched;
  // Lines pushed, counting those that were taken back only until then.
  logic [5:0] pushed_q = '0;
  logic [5:0] committed_q = '0;
  logic [5:0] popped_q = '0;
  logic [3:0] value_q;
  logic [5:0] pushed_next;
  assign pushed_next = pushed_q + 6'(push && push_ready);
  initial assume (rst);
  always_ff @(posedge clk) begin
    if (rst) begin
      pushed_q <= '0;
      committed_q <= '0;
      popped_q <= '0;
    end else begin
      if (rollback) pushed_q <= committed_q;
      else pushed_q <= pushed_next;
      if (commit && !rollback) committed_q <= pushed_next;
      if (pop && pop_valid) popped_q <= popped_q + 6'd1;
      if (push && push_ready && pushed_q == watched) value_q <= push_data;
      if (pop_valid) assert (popped_q != committed_q);
      if (pop_valid && popped_q == watched) assert (pop_data == value_q);
      assert (6'(pushed_q - popped_q) <= 6'd4);
    end
  end
endmodule
