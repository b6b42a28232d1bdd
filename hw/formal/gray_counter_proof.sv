// gray_counter: of its Gray code one bit changes at most, and only when it counts; and it is the code of the count.
module gray_counter_proof (
    input logic clk,
    input logic rst,
    input logic advance
);
  localparam int WIDTH = 6;
  logic [WIDTH-1:0] count;
  logic [WIDTH-1:0] gray;
  gray_counter #(
      .WIDTH(WIDTH)
  ) dut (
      .*
  );

  logic [WIDTH-1:0] before_q;
  logic [WIDTH-1:0] count_before_q;
  logic advanced_q;
  logic began_q = 1'b0;
  logic [WIDTH-1:0] changed;
  assign changed = gray ^ before_q;
  initial assume (rst);
  always_ff @(posedge clk) begin
    before_q <= gray;
    count_before_q <= count;
    advanced_q <= advance && !rst;
    began_q <= !rst;
    if (began_q) begin
      assert (gray == (count ^ (count >> 1)));
      assert ((changed & (changed - 1'b1)) == '0);
      assert ((changed != '0) == advanced_q);
      assert (count == count_before_q + WIDTH'(advanced_q));
    end
  end
endmodule
