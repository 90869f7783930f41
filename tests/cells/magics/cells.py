# %%
%%writefile note.txt
one
two
# %%
%%writefile -a note.txt
three
# %%
%cat note.txt
# %%
%%bash
echo out
echo $((1 + 1))
# %%
%%sh
cat note.txt | wc -l
# %%
%%bash --out caught
echo kept
# %%
caught
# %%
%%bash
exit 3
# %%
%%script python3 -c "import sys; print(sys.stdin.read().upper())"
text
# %%
%%capture caught
print("quiet")
1 + 1
# %%
caught.stdout, caught.outputs
# %%
# differs: stdout: a model can read the text; a notebook shows it, and has only the name of its class as text
%%html
<b>bold</b>
# %%
# differs: stdout: a model can read the text; a notebook shows it, and has only the name of its class as text
%%markdown
# Title
# %%
%%python3
print("another interpreter")
# %%
# differs: stdout: a model can read the text; a notebook shows it, and has only the name of its class as text
%%javascript
console.log(1)
# %%
# differs: stdout: a model can read the text; a notebook shows it, and has only the name of its class as text
%%latex
$x$
# %%
%%file other.txt
content
# %%
%load note.txt
# %%
%%prun -q
sum(range(3))
# %%
%macro again 5
# %%
%save -f saved.py 4-5
# %%
%pycat note.txt
# %%
for n in range(2):
    %time n
# %%
%%perl
print "perl\n"
# %%
%%ruby
puts 1
