
 
	
# and blank lines

