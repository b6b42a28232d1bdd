// fifo: nothing is lost, made up or overtaken, whatever is pushed and popped when. Element number k, for any k, comes out as it went
// in; the level is what went in less what came out, and never more than the depth.
module fifo_proof (
    input logic clk,
    input logic rst,
    input logic push,
    input logic [3:0] push_data,
    input logic pop
);
  localparam int DEPTH_LOG2 = 2;
  logic push_ready;
  logic pop_valid;
  logic [3:0] pop_data;
  logic [DEPTH_LOG2:0] level;
  fifo #(
      .WIDTH(4),
      .DEPTH_LOG2(DEPTH_LOG2)
  ) dut (
      .*
  );

  (* anyconst *) logic [5:0] watched;
  logic [5:0] pushed_q = '0;
  logic [5:0] popped_q = '0;
  logic [3:0] value_q;
  initial assume (rst);
  always_ff @(posedge clk) begin
    if (rst) begin
      pushed_q <= '0;
      popped_q <= '0;
    end else begin
      if (push && push_ready) pushed_q <= pushed_q + 6'd1;
      if (pop && pop_valid) popped_q <= popped_q + 6'd1;
      if (push && push_ready && pushed_q == watched) value_q <= push_data;
      assert (level == 3'(pushed_q - popped_q));
      assert (level <= 3'd4);
      assert (pop_valid == (pushed_q != popped_q));
      assert (push_ready == (level != 3'd4));
      if (pop_valid && popped_q == watched) assert (pop_data == value_q);
    end
  end
endmodule
