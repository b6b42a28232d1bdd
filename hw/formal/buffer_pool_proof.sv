// buffer_pool: a buffer that is out is not given out again before it has come back. Four buffers; whoever has one gives it back once.
module buffer_pool_proof (
    input logic clk,
    input logic rst,
    input logic take,
    input logic [3:0] give
);
  logic take_valid;
  logic [1:0] take_id;
  logic [2:0] taken;
  buffer_pool #(
      .BUFFERS_LOG2(2)
  ) dut (
      .*
  );
  logic [3:0] out_q = '0;
  initial assume (rst);
  always_ff @(posedge clk) begin
    assume (!take || take_valid);
    assume ((give & ~out_q) == '0);
    if (rst) out_q <= '0;
    else begin
      out_q <= (out_q & ~give) | (take ? 4'd1 << take_id : 4'd0);
      if (take) assert (!out_q[take_id]);
      assert (take_valid == (out_q != 4'hf));
      assert (taken == 3'(out_q[0]) + 3'(out_q[1]) + 3'(out_q[2]) + 3'(out_q[3]));
    end
  end
endmodule
