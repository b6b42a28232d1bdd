// clock_fifo: nothing is lost, made up or overtaken, whatever is pushed and popped when, and however the edges of the two clocks follow one
// another. Element number k, for any k, comes out as it went in.
module clock_fifo_proof (
    input logic push_clk,
    input logic push,
    input logic [1:0] push_data,
    input logic pop_clk,
    input logic pop
);
  localparam int DEPTH_LOG2 = 2;
  logic push_rst;
  logic pop_rst;
  logic push_ready;
  logic pop_valid;
  logic [1:0] pop_data;
  clock_fifo #(
      .WIDTH(2),
      .DEPTH_LOG2(DEPTH_LOG2)
  ) dut (
      .*
  );

  // Each side is in reset until both have been.
  logic push_began_q = 1'b0;
  logic pop_began_q = 1'b0;
  logic began;
  assign began = push_began_q && pop_began_q;
  assign push_rst = !began;
  assign pop_rst = !began;

  (* anyconst *) logic [4:0] watched;
  logic [4:0] pushed_q = '0;
  logic [4:0] popped_q = '0;
  logic [1:0] value_q;
  logic [4:0] inside;
  assign inside = pushed_q - popped_q;
  always_ff @(posedge push_clk) begin
    push_began_q <= 1'b1;
    if (began && push && push_ready) begin
      pushed_q <= pushed_q + 5'd1;
      if (pushed_q == watched) value_q <= push_data;
    end
  end
  always_ff @(posedge pop_clk) begin
    pop_began_q <= 1'b1;
    if (began && pop && pop_valid) popped_q <= popped_q + 5'd1;
  end
  always_comb begin
    if (began) begin
      assert (inside <= 5'd4);
      // What each side does not know yet makes it wait, and never go on.
      if (inside == 5'd4) assert (!push_ready);
      if (inside == 5'd0) assert (!pop_valid);
      if (pop_valid && popped_q == watched) assert (pop_data == value_q);
    end
  end
endmodule
